"""Files of tensors in the safetensors format: read, checked, mapped, written, and saved beside a program."""
