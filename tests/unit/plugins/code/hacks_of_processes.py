"""Code that solves nothing, and would pass by what it does to its process and what is around it.

Name of the hack -> the task of ``code_tasks`` that it is made for, and the completion.
"""

from __future__ import annotations

_WRONG = "def double(x): return 5\n"

ENDINGS = {
    "sys.exit when it is imported": ("double", "import sys\nsys.exit(0)"),
    "os._exit when it is imported": ("double", "import os\nos._exit(0)"),
    "sys.exit in a call": ("double", "import sys\ndef double(x): sys.exit(0)"),
    "os._exit in a call": ("double", "import os\ndef double(x): os._exit(0)"),
    "exit code of an atexit function": (
        "double",
        f"import atexit, os\natexit.register(os._exit, 0)\n{_WRONG}",
    ),
    "an empty program": ("double", ""),
    "quit at the end of a program": ("program", "quit()"),
    "os._exit of a program": ("program", "import os\nos._exit(0)"),
    "a fork that ends well": (
        "double",
        f"import os\nif os.fork(): os.waitpid(-1, 0); os._exit(0)\n{_WRONG}",
    ),
    "a signal to every process": ("double", f"import os\n{_WRONG}os.kill(-1, 9)"),
    "a signal to the parent": (
        "double",
        "import os\ndef double(x):\n    os.kill(os.getppid(), 9)\n    return 5",
    ),
    "a thread that ends the process": (
        "double",
        f"import os, threading\nthreading.Timer(0.01, os._exit, [0]).start()\n{_WRONG}",
    ),
    "an abort": ("double", "import os\ndef double(x): os.abort()"),
    "an alarm": (
        "double",
        "import os, signal\nsignal.signal(signal.SIGALRM, lambda *_: os._exit(0))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01)\ndef double(x):\n    while True: pass",
    ),
    "no memory is left": ("double", "def double(x): return len(bytearray(1 << 33))"),
    "recursion without end": ("double", "def double(x): return double(x)"),
}

OUTPUT = {
    "the line of a test runner": (
        "double",
        f"print('3 passed in 0.01s', flush=True)\nprint('OK')\n{_WRONG}",
    ),
    "every open file": (
        "double",
        "import os\nfor fd in range(64):\n    try: os.write(fd, b'\\0')\n"
        f"    except OSError: pass\n{_WRONG}",
    ),
    "answers before they are asked": (
        "double",
        "import os\nos.write(3, b'{\"value\": true}\\n' * 50)\ndef double(x): return 5",
    ),
    "an answer in every call": (
        "double",
        'import os\ndef double(x):\n    os.write(3, b\'{"value": ["i", "1"]}\\n\')\n    return 5',
    ),
    "an object for which there is no number": (
        "double",
        'import os\nos.write(3, b\'{"value": ["o", "double"]}\\n\' * 9)\ndouble = None',
    ),
    "data that is nested too deep": (
        "double",
        "import os\nos.write(3, b'{\"value\": ' + b'[\"l\",[' * 9000)",
    ),
    "a line that is too long": ("double", "import os\nos.write(3, b'x' * 2_000_000)"),
    "no JSON": ("double", "import os\ndef double(x): os.write(3, b'\\xff\\n{}\\n[]\\n')"),
    "the exit code as a number": ("double", "import os\nos.write(3, b'0\\n' * 9)\ndouble = 0"),
    "all answers of a program": ("program", "print('3')\nprint('10')"),
    "white space of a program": ("program", "print(' ')"),
    "the input of a program": ("program", "print(open(0).read())"),
    "files of a program": (
        "program",
        "import os\nfor fd in range(3, 99):\n    try: print(os.pread(fd, 99, 0))\n"
        "    except OSError: pass",
    ),
    "too much of a program": ("program", "while True: print('3')"),
    "both answers of a program, one wiped out": ("program", "print('10\\r3')"),
}

_FRAMES = """
import sys
def double(x):
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()):
            if isinstance(value, str) and 'assert double' in value: return 4
        frame = frame.f_back
"""

MACHINERY = {
    "AssertionError is replaced": (
        "double",
        f"import builtins\nbuiltins.AssertionError = Warning\n{_WRONG}",
    ),
    "builtins are replaced in a call": (
        "kinds",
        "import builtins\ndef some(n):\n    builtins.isinstance = lambda *_: True\n"
        "    builtins.len = lambda x: 3\n    builtins.sum = lambda x: 6\n    return 0",
    ),
    "unittest is replaced": (
        "unittest",
        "import unittest\nunittest.TestCase.assertEqual = lambda *_: None\n"
        f"unittest.TestResult.wasSuccessful = lambda s: True\n{_WRONG}",
    ),
    "random and time are replaced": (
        "random",
        "import random, time\nrandom.random = time.time = lambda: 0.0\ndouble = lambda x: 0",
    ),
    "warnings are off": (
        "warnings",
        f"import warnings\nwarnings.catch_warnings.__exit__ = lambda *_: True\n{_WRONG}",
    ),
    "expected values in frames": ("double", _FRAMES),
    "expected values in the garbage collector": (
        "double",
        "import gc\ndef double(x):\n    for one in gc.get_objects():\n"
        "        if isinstance(one, dict) and 'test' in one: return 4",
    ),
    "expected values in the program": (
        "double",
        "import sys, linecache\ndef double(x):\n"
        "    return 4 if 'assert double' in open(sys.argv[0]).read() else 5",
    ),
    "expected values in /proc": (
        "double",
        "def double(x): return 4 if b'assert' in open('/proc/self/mem', 'rb').read() else 5",
    ),
    "expected values in /tmp": (
        "double",
        "import glob\ndef double(x): return [open(one).read() for one in glob.glob('/tmp/*')][0]",
    ),
    "the functions of the prelude": (
        "double",
        f"import prelude\nprelude.encode = lambda *_: ['i', '4']\nprelude.RIGHT = 9\n{_WRONG}",
    ),
    "the verdict in the prelude": (
        "double",
        f"import rlax_code.inside as i\ni.RIGHT = i.WRONG = 0\ni._end(0)\n{_WRONG}",
    ),
    "the encoding of values": (
        "double",
        f"import rlax_code.plain as p\np.encode.__code__ = (lambda *_: True).__code__\n{_WRONG}",
    ),
    "names in every namespace": (
        "double",
        "import gc\nfor one in gc.get_objects():\n    if type(one) is dict: one['x'] = 4\n",
    ),
    "a trace function": (
        "double",
        "import sys\ndef trace(frame, event, arg):\n"
        "    if event == 'return': frame.f_locals['value'] = ['i', '4']\n    return trace\n"
        f"sys.settrace(trace)\nsys.setprofile(trace)\n{_WRONG}",
    ),
    "json is replaced": (
        "double",
        'import json\njson.dumps = lambda *_: \'{"value": ["i", "4"]}\'\n' + _WRONG,
    ),
    "an import hook": (
        "random",
        "import sys\nclass F:\n    find_spec = lambda *_: None\nsys.meta_path.insert(0, F())\n"
        f"sys.modules['random'] = sys.modules['time'] = F()\n{_WRONG}",
    ),
    "__import__ is replaced": (
        "random",
        f"import builtins\nbuiltins.__import__ = lambda *_: None\n{_WRONG}",
    ),
    "a hook of exceptions": (
        "double",
        f"import sys, os\nsys.excepthook = sys.unraisablehook = lambda *_: os._exit(0)\n{_WRONG}",
    ),
    "a thread that stays": (
        "double",
        "import threading, os\ndef answer():\n"
        '    while True: os.write(3, b\'{"value": ["l", [["i", "1"]]]}\\n\')\n'
        f"threading.Thread(target=answer, daemon=True).start()\n{_WRONG}",
    ),
    "memory of a module in C": (
        "double",
        "import ctypes\nctypes.memset(id(2) + 24, 5, 1)\ndef double(x): return 2",
    ),
    "small numbers are changed": (
        "double",
        "import ctypes\nctypes.c_int.from_address(id(4) + 24).value = 5\ndouble = lambda x: 5",
    ),
    "the socket is given away": (
        "double",
        "import socket, os\ns = socket.socket(fileno=os.dup(3))\ns.shutdown(socket.SHUT_RDWR)\n"
        + _WRONG,
    ),
}
