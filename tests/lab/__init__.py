"""fsqueue on real parts: an NFS server with separate kernel clients, and disks that lose power. See scripts/lab."""
