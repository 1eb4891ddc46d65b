"""Files under a root, on a disk or in a bucket, and the lock of the process that writes them."""
