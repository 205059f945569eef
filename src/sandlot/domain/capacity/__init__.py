"""How much a machine has and how much sessions may use: limits, machines, disks, pools, memory."""
