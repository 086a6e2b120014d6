"""ev.py MODEL N : greedy on N held-out topic examples + M others; by wish, choice table."""
import sys, re
from collections import Counter, defaultdict
from pathlib import Path
W=Path("/work/w22"); sys.path.insert(0,str(W))
import os, torch; os.chdir(W); torch.set_num_threads(int(os.environ.get("THREADS","1")))
from orchestra.config.schema import load_params
from orchestra.files.examples import read_examples
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.policies.transformers import TransformersPolicy, load_model
from orchestra.rollout.render import Codec
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, ToolKind
from orchestra.evaluation.outcomes import Unit, outcome, utility
import inspect
model,n,*rest=sys.argv[1:]; m=Path(model); data=rest[0] if rest else "heldout"; n=int(n)
params=load_params(W/"params.yaml"); tk=Toolkit.from_params(params,W); codec=Codec.load(m)
exs=read_examples(W/f"data/validated/{data}.jsonl") if (W/f"data/validated/{data}.jsonl").exists() else read_examples(W/f"data/generated/{data}.jsonl")
top=[e for e in exs if e.category is Category.TOPIC][:n]; oth=[e for e in exs if e.category is not Category.TOPIC][:int(n*.67)]
pol=TransformersPolicy("",name="x",model=load_model(m),eos_id=codec.eos_id)
eps=rollout(top+oth,pol,codec,tk,RolloutOptions(params.rollout,tk.catalogue.policy_price))
by={e.id:e for e in exs}
T=[(by[e.example_id],e) for e in eps if by[e.example_id].category is Category.TOPIC]
O=[(by[e.example_id],e) for e in eps if by[e.example_id].category is not Category.TOPIC]
def f(rows): return f"n {len(rows):4d} acc {100*sum(e.solved for _,e in rows)/max(1,len(rows)):.1f} cents {100*sum(float(e.cost_usd) for _,e in rows)/max(1,len(rows)):.2f} sec {sum(e.latency_s for _,e in rows)/max(1,len(rows)):.0f} turns {sum(len(e.turns) for _,e in rows)/max(1,len(rows)):.2f}"
print(model); print("TOPIC",f(T)); print("OTHER",f(O)); print("ALL  ",f(T+O))
for c in sorted({x.category.value for x,_ in O}): print("   ",c,f([(x,e) for x,e in O if x.category.value==c]))
kinds=defaultdict(list)
for x,e in T: kinds[x.preference.kind].append((x,e))
first=defaultdict(Counter); later=defaultdict(Counter)
for x,e in T:
    for i,t in enumerate(e.turns):
        text=codec.decode(list(t.ids)); th=text.split("\n</think>")[0].split("\n")[-1].split(" ")[-1]
        parts=th.split("-")
        (first[x.preference.kind] if i==0 else later[(parts[0], x.preference.kind)])["-".join(parts[1:]) if i==0 else "-".join(parts[2:])]+=1
for k,r in kinds.items(): print(k,f(r),first[k].most_common(4))
for k in sorted(later): print("  ",k,later[k].most_common(4))
