"""A discrete-event model of one RL step: where GPUs wait, by number of nodes. Needs no GPU and no torch."""
