"""What a stage takes of GPUs, on paper: parameters, memory, time, services. Pure arithmetic, without torch.

docs/planning.md says the formulae, the assumptions and where each constant comes from.
"""
