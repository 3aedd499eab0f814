#!/bin/bash
#SBATCH --job-name=fsqueue-serve
#SBATCH --time=7-00:00:00
#SBATCH --cpus-per-task=1
#SBATCH --mem=1G
#SBATCH --signal=B:TERM@60
# A gateway as a batch job, for clusters whose login nodes end long processes. Submit it:  sbatch serve-in-slurm.sh GROUP
# It listens on a socket in your home, which is private. On your own machine, forward a port to it by way of the job
# node (`squeue --me` tells which). Write your home on the cluster:  ssh -N -J login1 -L 8750:/home/me/fsqueue.sock NODE
exec fsqueue serve "$1" --listen "unix:$HOME/fsqueue.sock"
