import time, torch, sys
sys.path.insert(0,'.')
from pipediag.measure.account import Counters
c=Counters(); x=torch.rand(8192,8192,device='cuda')
for _ in range(3): y=x@x
torch.cuda.synchronize()
def go(name,f):
    a=c.here(); t=time.perf_counter(); f(); torch.cuda.synchronize(); w=time.perf_counter()-t; b=c.here()
    print(name, f"wall {w*1e3:.1f} cpu {(b.cpu-a.cpu)*1e3:.1f} queue {(b.queue-a.queue)*1e3:.1f}", flush=True)
go("sync 30 matmuls", lambda: [x@x for _ in range(30)])
go("item each", lambda: [(x@x)[0,0].item() for _ in range(30)])
m=torch.nn.Sequential(*[torch.nn.Linear(512,512) for _ in range(60)]).cuda(); z=torch.rand(64,512,device='cuda')
def train():
    for _ in range(50): m(z).sum().backward()
train(); go("backward of small layers", train)
n=2000; t=time.perf_counter()
for _ in range(n): c.here()
print("here us", 1e6*(time.perf_counter()-t)/n); t=time.perf_counter(); 
for _ in range(20): c.others(); c.steal()
print("others+steal us", 1e6*(time.perf_counter()-t)/20, len(c.others()))
print(open('/proc/stat').readline(), torch.__version__, torch.cuda.get_device_name())
