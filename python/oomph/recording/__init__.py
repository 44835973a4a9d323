"""Records what a program does with memory. Importing it does not import torch."""
