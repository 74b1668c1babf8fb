"""Processes that run foreign code: submitted programs, and the C that they become.

A verified program names no file and no socket, but it may run for ever, take all memory, or meet a
bug of a kernel that was compiled for it. So it runs in a process of its own:

    process    the agent's side: starts a process, asks it by frames, kills it with what it started
    serving    the process's side: its pipes, and its end with the agent's
    limits     memory, processor time, open files; both sides
    walls      what the operating system then still lets it do: landlock, seccomp
    compiler   compiles a bundle, in a process that never runs it
    programs   compiled programs without a compiler: what a process that runs them loads

Two kinds of process share the work. One compiles: it may start the C compiler, and write the cache
of workers. The other runs: it starts nothing, writes nothing, and opens no socket. Each serves one
bundle, so that a program that breaks out of its memory meets no other bundle's.
"""
