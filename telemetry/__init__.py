"""What happened: stream reader, meter, record, metric catalogue, and the sinks that records go to."""
