"""Runs in experiment trackers: TensorBoard, MLflow, Weights & Biases."""
