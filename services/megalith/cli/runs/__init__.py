"""What a run was given and leaves in its model directory; its task, made again."""
