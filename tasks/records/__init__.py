"""Records of operations: releases, traces, verdicts, metrics; what is shared with other machines or may be deleted."""
