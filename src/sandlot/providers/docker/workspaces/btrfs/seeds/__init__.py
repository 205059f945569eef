"""What new workspaces begin with.

images.py      the files of images, from which new workspaces are copied
archives.py    writes such files from the engine's archive
spares.py      copies of snapshots made ahead, so that a create does not wait for one
"""
