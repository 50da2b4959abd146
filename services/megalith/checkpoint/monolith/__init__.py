"""Reading the table files of a Monolith checkpoint, and making a checkpoint of Megalith of them."""
