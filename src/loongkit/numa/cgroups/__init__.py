"""Sub-cgroups for the training processes and the data workers of a job."""
