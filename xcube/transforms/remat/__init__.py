"""What `checkpoint` saves and what it computes again: policies, the split of a program by a policy,
and the plan that keeps within a budget of bytes."""
