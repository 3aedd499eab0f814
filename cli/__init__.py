"""The command line of fsqueue, installed as `fsqueue_cli`: commands that call public names and print."""
