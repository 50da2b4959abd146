"""`megalith up` and `megalith train`: a job from its start to its end."""
