cd /work/w22; . .venv/bin/activate; export PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=2
python /work/lab/more.py; THREADS=2 python /work/lab/ev.py /work/lab/BM 614 > /work/lab/evBM.out 2>&1
THREADS=2 python /work/lab/ev.py models/base/embedded 614 > /work/lab/evB0.out 2>&1
