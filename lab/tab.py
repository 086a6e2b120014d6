import sys; sys.path.insert(0,"/work/w22")
import os; os.chdir("/work/w22")
import math, random, pickle
from pathlib import Path
from statistics import mean
import benchmarks.choices as C
from benchmarks.reckoning import questions
from orchestra.config.schema import Grpo, load_params
from orchestra.evaluation.outcomes import Unit
root=Path("/work/w22"); params=load_params(root/"params.yaml")
rows,aside=(questions(params,root,c,s) for c,s in ((2000,11),(600,12)))
st=[(float(r.strongest.call_usd),r.strongest.latency_s) for r in aside]
unit=Unit(cost_usd=mean(u for u,_ in st),latency_s=mean(s for _,s in st))
class Start(C.Table):
    stop,strongest,ask_on=.15,.3,.8
    def __init__(self):
        super().__init__(); outer=self
    def draw(self,key,among,rng):
        if key not in self.logits:
            s=self.stop*(1-self.ask_on) if key[1]=="unsure" else self.stop
            for c in (*C.CHOICES,"answer"):
                p = s if c=="answer" else (1-s)*(self.strongest if c.endswith("strongest") else (1-self.strongest)/5)
                self.logits[key][c]=math.log(max(p,1e-3))
        return super().draw(key,among,rng)
C.Table=Start
print("| name | right | cents | cheap | fast | prefer | avoid | u "+" ".join(C.KINDS)+" | all")
for stop,strongest in ((.4,.6),(.15,.3),(.05,.2)):
    Start.stop,Start.strongest=stop,strongest
    for rate in (float(x) for x in sys.argv[2].split(",")):
        for seed in range(2):
            s=Grpo.model_validate(params.grpo.model_dump()|eval(sys.argv[3] if len(sys.argv)>3 else "{}"))
            t=C.trained(rows,s,int(sys.argv[1]),rate,seed)
            print(C.told(f"stop {stop} st {strongest} rate {rate} s{seed}",t,aside,unit),flush=True)
            if seed==0: print(C.likeliest(t))
