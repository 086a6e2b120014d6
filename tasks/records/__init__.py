"""Records of operations in MLflow: releases, checkpoints, and the traces of requests."""
