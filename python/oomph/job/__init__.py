"""A job of many ranks on one machine without GPUs: some of its ranks run, and stand in for those that are like them."""
