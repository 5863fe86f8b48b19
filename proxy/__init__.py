"""The serving path: command line, configuration, wiring, client and worker connections, and the control process."""
