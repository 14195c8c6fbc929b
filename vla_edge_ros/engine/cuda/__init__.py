"""The CUDA engine. Nothing here is imported with the package: `engine.py` asks for a device when used."""
