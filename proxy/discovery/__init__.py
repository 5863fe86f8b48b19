"""Workers that are found while the gateway runs, by a file, DNS or Kubernetes; all of it in the control process."""
