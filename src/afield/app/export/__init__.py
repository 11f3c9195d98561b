"""A trained method as a file for other programs: ONNX, torch.export's program, or its weights alone."""
