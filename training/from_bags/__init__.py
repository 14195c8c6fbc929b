"""`vla-edge train`: the small model fine-tuned on recordings of another arm."""
