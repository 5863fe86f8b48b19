"""Reports as one HTML file each: charts drawn as inline SVG, tables, and nothing that is fetched."""
