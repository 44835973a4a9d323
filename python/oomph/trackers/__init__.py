"""Step counters and findings in Weights & Biases, MLflow, TensorBoard and OpenTelemetry. None of these is imported here."""
