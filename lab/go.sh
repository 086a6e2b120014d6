cd /work/w22; . .venv/bin/activate; export PYTHONDONTWRITEBYTECODE=; unset OMP_NUM_THREADS
date; time make pipeline; echo RC $?; date
THREADS=2 OMP_NUM_THREADS=2 python /work/lab/ev.py models/grpo 614 > /work/lab/ev2.out 2>&1; date
