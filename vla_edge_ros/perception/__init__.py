"""From a camera message to a whole frame of the size that the model takes."""
