"""What a replica computes: predictions by the task of the job."""
