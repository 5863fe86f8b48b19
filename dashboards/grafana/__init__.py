"""The dashboards of Grafana as code: what each panel asks and how it is drawn; ``python -m dashboards.grafana`` writes them.

What a board holds is said by plain values (`values`, `words`, `colours` and a module per board), which rules and tests may read
without Grafana's SDK; `build` alone turns them into the JSON that Grafana loads.
"""
