"""Reading what one ps, or one replica, is to hold out of a checkpoint and increments."""
