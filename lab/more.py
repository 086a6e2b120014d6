import sys, os, random, tempfile
from pathlib import Path
W=Path("/work/w22"); sys.path.insert(0,str(W)); os.chdir(W)
import torch; torch.set_num_threads(2)
import tasks.experiments.base as B
from tasks.platform.stage import Stage
from orchestra.rollout.render import Codec
from orchestra.rollout.policies.transformers import load_model
from orchestra.types import Category as C
from orchestra.system.environment import quiet
from orchestra.training.sft import train_sft, new_model
quiet()
B.EXAMPLES=12000
mix={C.TOPIC:.16,C.LOOKUP:.27,C.CHANGE:.24,C.TWO_HOP:.05,C.FACT:.02,C.ARITHMETIC:.14,C.DIRECT:.12}
lesson=B.BaseLesson("more",range(7,9),mix)
stage=Stage.open("base",W); stage.params=params=B.recipe_of_base(stage.params)
params=params.model_copy(update={"sft":params.sft.model_copy(update={"learning_rate":0.002})})
codec=Codec.load(W/params.model.recipe)
taken=B.domain_names(W/"data/domains",params.world.domains)
with tempfile.TemporaryDirectory() as d:
    worlds=[B.world(stage,B.SEED+n,Path(d)/str(n),mix) for n in lesson.worlds]
    dis=B.Disguise(codec,random.Random("more"),taken)
    eps=list(B.taught(stage,lesson,worlds,codec,dis))
print("episodes",len(eps),flush=True)
model=new_model(W/params.model.recipe,B.SEED)
model.load_state_dict(load_model(W/B.TARGET).state_dict())
meter=stage.progress(-(-len(eps)//16),"more")
work=Path("/work/lab/morework"); work.mkdir(exist_ok=True)
r=train_sft(model,codec,eps,params.sft,work,lambda m,s: meter(s,note=f"loss {m['train/loss']:.3f}"))
print("loss",r.loss,r.steps,flush=True)
out=Path("/work/lab/BM"); out.mkdir(exist_ok=True); model.save_pretrained(out)
import shutil
for f in (W/B.TARGET).iterdir():
    if not (out/f.name).exists(): shutil.copy(f,out/f.name)
print("DONE",flush=True)
