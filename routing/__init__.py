"""Which worker and why: estimate, pools, policies, as pure functions of a snapshot."""
