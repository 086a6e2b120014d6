"""How fast a GRPO step's rollout is, against TRL's loop and `generate`: `python -m benchmarks.rollout`."""
from __future__ import annotations
import random, tempfile, sys
from pathlib import Path
import torch
from benchmarks.bench import open_bench, timed, machine
from benchmarks.generate_policy import GeneratePolicy
from benchmarks.trl_environment import TrlLoop
from orchestra.rollout.loop import rollout
from orchestra.rollout.transformers_policy import TransformersPolicy

from orchestra.environment import quiet
quiet()
T=float(sys.argv[1]) if len(sys.argv)>1 else 1.0
shape=sys.argv[2] if len(sys.argv)>2 else 'embedded'
b=open_bench(24,shape=shape)
ours=TransformersPolicy('',name='o',model=b.model,eos_id=b.codec.eos_id,temperature=T)
gen=GeneratePolicy(b.model,eos_id=b.codec.eos_id,pad_id=b.codec.tokenizer.pad_token_id,temperature=T)
def go(pol,ex,batch): return rollout(ex,pol,b.codec,b.toolkit,b.params.rollout,price=b.price,samples=8,batch=batch)
go(ours,b.examples[:1],64); go(gen,b.examples[:1],64)
for k in range(3):
    ex=b.examples[8*k:8*k+8]
    torch.manual_seed(0)
    res={}
    eo,s=timed(lambda: go(ours,ex,64)); n=sum(sum(e.mask) for e in eo); print('ours',s,n); res['o']=eo
    eb,s=timed(lambda: go(gen,ex,64)); n=sum(sum(e.mask) for e in eb); print('batched',s,n)
    if k==0:
        es,s=timed(lambda: go(gen,ex,1)); n=sum(sum(e.mask) for e in es); print('single',s,n)
    with tempfile.TemporaryDirectory() as w:
        trl=TrlLoop(b,ex,8,T,Path(w))
        out,s=timed(trl); print('trl',s,trl.tokens)
    print('same prompts',sum(list(e.prompt_ids)==p for e,(p,_) in zip(eo,out)),'same compl trl',sum(e.completion_ids==c for e,(_,c) in zip(eo,out)),'batched',sum(e.completion_ids==c.completion_ids for e,c in zip(eo,eb)))
    if T==0:
        for e,(p,c) in zip(eo,out):
            if e.completion_ids!=c: print([t.text for t in e.turns], b.codec.tokenizer.decode(c)); break
