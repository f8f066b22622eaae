"""Jobs on a rank: from a job file, or from a script that calls ooodist.distribute or pipelined."""
