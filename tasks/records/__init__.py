"""What operations leave in MLflow: releases, and the traces of requests."""
