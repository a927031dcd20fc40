"""Files of tensors in the safetensors format: read, checked, mapped and written."""
