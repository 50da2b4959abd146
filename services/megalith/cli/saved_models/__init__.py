"""`megalith eval`, `predict` and `export`: what is done with a model that is saved."""
