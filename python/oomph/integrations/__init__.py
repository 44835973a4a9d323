"""Callbacks for trainers. Each module imports its framework, so import the one that you use."""
