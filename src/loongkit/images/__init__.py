"""What the image features do at run time, between the hooks and the kernels."""
