"""lab.py sft|grpo NAME [key=val ...]  — in /work/lab/NAME, from /work/w22; INIT: sft model dir for grpo."""
import os, sys
from pathlib import Path
W=Path("/work/w22"); kind,name,*sets=sys.argv[1:]
root=Path("/work/lab")/name; root.mkdir(exist_ok=True); (root/"models").mkdir(exist_ok=True)
for f in W.iterdir():
    if f.name not in ("models",".git","work","reports",".state",".dvc","mlruns") and not (root/f.name).exists(): (root/f.name).symlink_to(f)
for f in ("base","recipes"):
    if not (root/"models"/f).exists(): (root/"models"/f).symlink_to(W/"models"/f)
if kind=="grpo" and not (root/"models/sft").exists(): (root/"models/sft").symlink_to(os.environ["INIT"])
import yaml
p=yaml.safe_load((W/"params.yaml").read_text())
for s in sets:
    k,v=s.split("=",1); d=p
    *a,b=k.split(".")
    for x in a: d=d[x]
    d[b]=yaml.safe_load(v)
(root/"params.yaml").unlink(missing_ok=True); (root/"params.yaml").write_text(yaml.safe_dump(p))
os.chdir(root)
sys.path.insert(0,str(W))
import torch; torch.set_num_threads(int(os.environ.get("THREADS","1")))
from tasks.platform.stage import Stage
from tasks.platform.stage import load_params
import tasks.sft, tasks.grpo
from orchestra.system.environment import quiet
quiet()
stage=Stage(kind,load_params(root/"params.yaml"),root)
{"sft":tasks.sft,"grpo":tasks.grpo}[kind].main(stage)
print("DONE",flush=True)
