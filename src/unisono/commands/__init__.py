"""What the verbs of the command do. One file each, light until it is used."""
