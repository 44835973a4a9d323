"""What oomph puts into the processes of a program that it runs. Plain Python and torch, nothing else."""
