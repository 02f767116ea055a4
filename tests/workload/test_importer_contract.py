"""Trace formats that come with HERMES keep the contract of trace importers."""

from hermes.testing.workload import TraceImporterContract
from hermes.workload.importers import AzureTrace, BurstGptTrace, CsvTrace, MooncakeTrace


class TestAzure(TraceImporterContract):
    text = ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:50.95,396,109\n"
            "2023-11-16 18:15:51.22,879,55\n")

    def make(self):
        return AzureTrace()


class TestMooncake(TraceImporterContract):
    text = ('{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
            '{"timestamp": 27, "input_length": 700, "output_length": 9, "hash_ids": [1, 3]}\n')

    def make(self):
        return MooncakeTrace()


class TestBurstGpt(TraceImporterContract):
    text = ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            "5,ChatGPT,472,18,490,Conversation log\n"
            "45,ChatGPT,1087,230,1317,Conversation log\n")

    def make(self):
        return BurstGptTrace()


class TestCsv(TraceImporterContract):
    text = "arrival_s,prompt_tokens,output_tokens\n1,20,3\n2.5,30,4\n"

    def make(self):
        return CsvTrace()
