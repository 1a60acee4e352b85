"""The data path from worker to device: what the hooks of the data features put in place."""
